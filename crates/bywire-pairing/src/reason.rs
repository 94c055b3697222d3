//! Why a connection stays in the kernel.

macro_rules! reasons {
    ($($variant:ident = $text:literal,)*) => {
        /// Why a connection was not carried.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $variant,)*
        }

        impl Reason {
            /// All reasons, each at the index of its number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The reason in a few words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

reasons! {
    Plain = "the other end is not run by Bywire, is run by another user while no `bywire pair` serves both, is not on this machine, or is in a network namespace that is not joined",
    Short = "it was too short to be worth carrying, or ended before the other end was known",
    Shared = "several processes held it",
    Unseen = "bytes passed that the library did not see",
    Stdio = "used through a FILE",
    Option = "a socket option that carried bytes could not honour",
    Urgent = "urgent data",
    FastOpen = "TCP fast open",
    Signals = "signals for input and output (O_ASYNC)",
    Epoll = "an epoll registration of a kind that is not carried",
    Waiting = "threads slept in the kernel on it whenever it was looked at",
    Device = "bound to an interface",
    Namespace = "the same addresses were offered from another network namespace, or it is a Unix socket in another one than the pairing service",
    Service = "the pairing service did not answer",
    Memory = "no memory or no descriptors, or the rings have all the memory that they may",
    Refused = "the kernel's own account of it did not fit",
    IoUring = "the program uses io_uring",
    Passed = "its descriptor went to another program",
    OtherUser = "the other end belongs to another user, and no further connection to other users can be carried",
    Sandbox = "a filter of system calls was installed, and everything is the kernel's from then on (once for each program)",
    Go = "a program or library in Go calls the kernel by itself, and all of its connections are the kernel's (once for each program)",
    Loaded = "a library was loaded into a namespace of its own, and everything is the kernel's from then on (once for each program)",
    Reconnected = "it was connected before, or listens",
    Unshared = "a thread has a table of descriptors of its own, and everything is the kernel's from then on (once for each program)",
    Inline = "the program calls the kernel by itself for some of its calls, and all of its connections are the kernel's (once for each program)",
    Ancillary = "descriptors or credentials come with its bytes",
    Required = "it had to be carried to another machine of the fabric, and was refused as it could not be",
}

impl Reason {
    /// The reason with this number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
