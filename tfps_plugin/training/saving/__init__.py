"""Files of weights and SavedModels: Keras's part.

table_rows.py    rows of a large table, read and written block by block
block_stores.py  Keras's files, read and written in blocks of tables
stored_array.py  an array in a file, read block by block
lora_saving.py   embeddings with LoRA, merged block by block
exporting.py     SavedModels of models on parameter servers
"""
