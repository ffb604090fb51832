"""Files of weights and SavedModels: Keras's part.

table_saving.py  big variables to and from files, block by block
stored_array.py  a variable that a file takes block by block
lora_saving.py   embeddings with LoRA, merged block by block
exporting.py     SavedModels of models on parameter servers
"""
