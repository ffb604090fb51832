"""Memory of parameter servers that a file on the local disk backs.

    tensor_memory   the memory of tensors, as this process allocates it
    page_calls      the calls of the operating system
    page_uses       pure: the pages that are used least
    mapped_region   the memory of one variable
    region_board    all regions of this process; the thread that keeps limits
    disk_functions  functions of this process that chiefs call

A parameter server's variable stays what it is, an array in memory that every
operation of TensorFlow reads and changes. Only the pages of that memory become
those of a file: the operating system brings them from the disk when they are
touched. What this package adds is the choice of the pages that stay.
"""
