"""A budget for a rank whose model is sharded (FSDP2): which plan each of its blocks trains under.

sharded model ──simulation──▶ step of a rank, calls of its blocks ──levels──▶ plans of each kind of block ──choice──▶
plan of each block ──simulation──▶ peak of a rank
"""
