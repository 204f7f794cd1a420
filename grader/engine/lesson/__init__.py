"""Sources come in, student files, units of code and releases go out; nothing of a lesson is ever run here."""
