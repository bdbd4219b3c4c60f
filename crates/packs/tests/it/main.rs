//! Kernel packs: what good ones do, and what hostile ones cannot.

mod sandbox;
