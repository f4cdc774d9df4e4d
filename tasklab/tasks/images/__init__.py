"""Images that are not drawn: found on the disk or the hub, checked, decoded once, and served.

In the order of the flow: `formats` (parquet files, folders, torchvision's layouts) are read by
`folders` and `copies` (known data sets and the traps of their copies), found by `finding`, kept by
`decoded`, cropped by `augment`, and served by `loader`.
"""
