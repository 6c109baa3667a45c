"""The planted faults of this project as data: what is wrong, who saw it first, and which check must name it."""
