//! The model store: a catalogue of named models, their sources, and the files on disk.
