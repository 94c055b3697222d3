//! What `bywire run` and `bywire status` tell.
