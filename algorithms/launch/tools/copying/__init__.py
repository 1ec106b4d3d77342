"""`--copy DIR`: an algorithm's file with all that it uses of the kit, as one file.

copies         writes the file
bundle         its pieces, their order and their names
texts          the text of a piece, without what a copy has decided
sources        files of the kit, and what names in them mean
alone          what some of the kit's definitions are in a copy; it is read, never imported
"""
