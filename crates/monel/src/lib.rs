//! monel
