"""The log of a store as files of JSON lines, from which an equal store is made. Decision 96."""
