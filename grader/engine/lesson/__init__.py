"""Sources come in; student files, units of code and releases go out; no lesson's code is ever run here."""
