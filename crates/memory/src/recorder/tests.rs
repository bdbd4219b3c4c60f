//! What only the inside of the recorder can show.
