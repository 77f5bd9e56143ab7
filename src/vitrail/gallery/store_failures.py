"""The failures of a gallery's store, apart from wrong questions: they are told by their class, never by their words."""


class StoreFailedError(ValueError):
    """A gallery can't be read or changed, whatever was asked.

    It is damaged, gone, out of reach, of another model, or can't be written.
    """
