"""The one exception that means: the user can mend this."""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class UserError(Exception):
    """A mistake of the user's: one sentence that says what, where, and what to do. Exit code 2."""
