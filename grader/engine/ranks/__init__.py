"""Jobs for ranks come in, events, evidence and faults go out; it never decides a mark."""
