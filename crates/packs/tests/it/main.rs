//! Kernel packs: what good ones do, and what hostile ones cannot.

mod format;
mod sandbox;
mod support;
