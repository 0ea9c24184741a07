"""The broker's side of the words: JetStream log, inbox, buckets, connection, embedded server."""
