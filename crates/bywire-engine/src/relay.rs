//! The decision about a relayed connection: the next step, by what is seen of the program's segment.

use bywire_ring::stream::Route;

/// The engine's view of a program's sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// How the bytes travel now, as the program has published it.
    pub route: Route,
    /// Bytes in the ring that the kernel was not given.
    pub unread: usize,
    /// The program has shut down its sending, behind these bytes.
    pub is_half: bool,
    /// The program has closed the connection, or has ended. A forked child may still have it.
    pub has_gone: bool,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until the program does something.
    Nothing,
    /// Give the kernel bytes out of the ring.
    Send,
    /// Tell the kernel the end of this direction, and let the descriptor go: the kernel has all bytes before it.
    ShutDown,
    /// Let the descriptor go. The kernel ends the connection in order, if nobody else has it.
    Release,
    /// Let the descriptor go, and leave it to its options how the connection ends: bytes may be lost.
    Abandon,
}

/// Decides by what is seen.
pub fn next(view: View) -> Next {
    match view.route {
        // Its last piece went through the kernel, if it was killed halfway.
        Route::Kernel | Route::Pending if view.has_gone => Next::Release,
        Route::Kernel | Route::Pending => Next::Nothing,
        // It is about to take its bytes back, so nobody begins to take any. Another process of its family may be doing so
        // although the program has gone.
        Route::Ending if !view.has_gone => Next::Nothing,
        Route::Ending => Next::Abandon,
        Route::Ring if view.unread > 0 => Next::Send,
        // Another process may still have the connection, and receive.
        Route::Ring if view.is_half => Next::ShutDown,
        Route::Ring if view.has_gone => Next::Release,
        Route::Ring => Next::Nothing,
        // The program gives the rest to the kernel by itself. If it is killed meanwhile, nobody knows how much of it the
        // kernel has: the program has made that a reset.
        Route::Back(_) => Next::Abandon,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: [Route; 5] = [Route::Kernel, Route::Pending, Route::Ring, Route::Ending, Route::Back(7)];

    fn views() -> impl Iterator<Item = View> {
        ROUTES.into_iter().flat_map(|route| {
            [0, 5].into_iter().flat_map(move |unread| {
                [false, true].into_iter().flat_map(move |is_half| {
                    [false, true].map(|has_gone| View { route, unread, is_half, has_gone })
                })
            })
        })
    }

    #[test]
    fn bytes_in_the_ring_are_sent_before_any_end() {
        for view in views().filter(|view| view.unread > 0 && view.route == Route::Ring) {
            assert_eq!(next(view), Next::Send, "{view:?}");
        }
    }

    #[test]
    fn nothing_is_taken_from_a_program_that_takes_its_bytes_back() {
        for view in views().filter(|view| view.route == Route::Ending) {
            let expected = if view.has_gone { Next::Abandon } else { Next::Nothing };
            assert_eq!(next(view), expected, "{view:?}");
        }
        for view in views().filter(|view| matches!(view.route, Route::Back(_))) {
            assert_eq!(next(view), Next::Abandon, "{view:?}");
        }
    }

    #[test]
    fn the_descriptor_of_a_program_that_has_gone_is_let_go_once_its_bytes_are_sent() {
        for view in views().filter(|view| view.has_gone) {
            let next = next(view);
            let sends = view.unread > 0 && view.route == Route::Ring;
            assert_eq!(next == Next::Send, sends, "{view:?}");
            assert!(sends || !matches!(next, Next::Nothing), "{view:?}");
        }
    }

    #[test]
    fn an_end_of_sending_is_told_behind_the_last_byte_only() {
        for view in views() {
            let expected = view.route == Route::Ring && view.unread == 0 && view.is_half;
            assert_eq!(next(view) == Next::ShutDown, expected, "{view:?}");
        }
    }
}
