"""Files of weights and SavedModels: Keras's part.

table_rows.py    rows of a large table, read and written block by block
block_stores.py  Keras's files, which take and give tables in blocks
stored_array.py  a variable that a file takes block by block
lora_saving.py   embeddings with LoRA, merged block by block
exporting.py     SavedModels of models on parameter servers
"""
