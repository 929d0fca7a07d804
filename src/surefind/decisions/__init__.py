"""When an answer may be called a match, and when a person should look."""
