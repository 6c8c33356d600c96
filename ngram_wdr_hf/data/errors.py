"""The errors for unusable input, and what unusable files raise."""

import gzip
import lzma
import zipfile
import zlib

# What reading a damaged file raises, or one that is not in the format of its name.
DAMAGED = (EOFError, UnicodeDecodeError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)


class InputError(ValueError):
    """
    Unusable input from the user: an option, a file, a dataset or a model. The message is one line that says what to
    do. Scripts print it without a traceback and exit with code 2.
    """


class Unavailable(ValueError):
    """An analysis that does not apply to a model or a text. Its message is the reason, and what to do."""
