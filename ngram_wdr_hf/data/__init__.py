"""From files, folders and dataset names to what a language model is trained and evaluated on."""
