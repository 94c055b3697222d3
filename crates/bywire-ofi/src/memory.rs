//! Memory of the program that an operation reads or writes, in one piece or several.

use std::marker::PhantomData;

use bywire::Buffer;

use crate::abi::iovec;

/// The most pieces of an operation.
pub const PIECES_MAX: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Piece {
    base: *mut u8,
    length: usize,
}

/// Memory of the program, which it leaves to an operation until that completes, or registers.
#[derive(Clone, Debug)]
pub struct Memory {
    pieces: Pieces,
    length: u64,
}

#[derive(Clone, Debug)]
enum Pieces {
    One(Piece),
    Many(Box<[Piece]>),
}

/// A short piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Short<'a> {
    piece: Piece,
    memory: PhantomData<&'a Memory>,
}

impl Short<'_> {
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.piece.length
    }

    /// Copies it to `target`, which is as long.
    #[inline(always)]
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.piece.length, "as much room as there is to copy");
        if self.piece.length > 0 {
            // SAFETY: the creator of the memory has promised that it is valid and initialised, and `target` is as long. `target`
            // is memory of this library, so the two do not overlap. If the program changes its memory meanwhile, any mix of the
            // bytes will do.
            unsafe { std::ptr::copy_nonoverlapping(self.piece.base, target.as_mut_ptr(), self.piece.length) };
        }
    }
}

// SAFETY: the creator has promised that the memory belongs to the operation, on whatever thread that is completed.
unsafe impl Send for Memory {}

impl Memory {
    /// One piece.
    ///
    /// # Safety
    /// The memory is valid until the returned value has been dropped: for reads, and for writes if something is written
    /// through it. It is initialised. Nothing else changes it while a method of this value runs, except memory that is
    /// registered, or that an operation reads or writes one-sidedly: then the bytes that are copied are any mix.
    pub unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { pieces: Pieces::One(Piece { base, length }), length: length as u64 }
    }

    /// Several pieces. `None`: there are too many, they or one of them have no address, or their lengths are no length.
    ///
    /// # Safety
    /// `vectors` points to `count` of them. Of each the requirements of [`Memory::new`] hold.
    pub unsafe fn gather(vectors: *const iovec, count: usize) -> Option<Self> {
        if count > PIECES_MAX || vectors.is_null() && count > 0 {
            return None;
        }
        let vectors: &[iovec] = match count {
            0 => &[],
            // SAFETY: the caller's guarantee: `vectors` points to `count` of them.
            _ => unsafe { std::slice::from_raw_parts(vectors, count) },
        };
        if vectors.iter().any(|vector| vector.base.is_null() && vector.length > 0) {
            return None;
        }
        let piece = |vector: &iovec| Piece { base: vector.base.cast(), length: vector.length };
        let length = vectors.iter().try_fold(0u64, |sum, vector| sum.checked_add(vector.length as u64))?;
        let pieces = match vectors {
            [one] => Pieces::One(piece(one)),
            _ => Pieces::Many(vectors.iter().map(piece).collect()),
        };
        Some(Self { pieces, length })
    }

    #[inline]
    fn pieces(&self) -> &[Piece] {
        match &self.pieces {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// The length of all pieces.
    #[inline]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The address of the first byte.
    #[inline]
    pub fn base(&self) -> usize {
        self.pieces().first().map_or(0, |piece| piece.base as usize)
    }

    /// The parts of `length` bytes from `offset` on, as far as there is memory.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> {
        let (mut skip, mut rest) = (offset, length);
        self.pieces().iter().filter_map(move |piece| {
            let begin = skip.min(piece.length as u64);
            skip -= begin;
            let length = rest.min(piece.length as u64 - begin);
            rest -= length;
            // A program may register all of its address space, which is longer than any object.
            let base = piece.base.wrapping_add(begin as usize);
            (length > 0).then_some(Piece { base, length: length as usize })
        })
    }

    /// The memory, if it is one piece of `max` bytes at most.
    #[inline(always)]
    pub fn short(&self, max: usize) -> Option<Short<'_>> {
        match self.pieces {
            Pieces::One(piece) if piece.length <= max => Some(Short { piece, memory: PhantomData }),
            _ => None,
        }
    }

    /// Appends `length` bytes from `offset` on to `target`.
    pub fn read(&self, offset: u64, length: u64, target: &mut Vec<u8>) {
        for part in self.parts(offset, length) {
            // SAFETY: the creator has promised valid, initialised memory. If the program changes it meanwhile, any mix of the
            // bytes will do, which are only copied here.
            target.extend_from_slice(unsafe { std::slice::from_raw_parts(part.base, part.length) });
        }
    }

    /// The `length` bytes from `offset` on: where they are, or in `scratch` if they are in several pieces.
    ///
    /// # Safety
    /// Nothing changes the memory while the result is used, one-sidedly either.
    pub unsafe fn joined<'a>(&'a self, offset: u64, length: u64, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let mut parts = self.parts(offset, length);
        match (parts.next(), parts.next()) {
            (None, _) => &[],
            // SAFETY: the creator has promised valid, initialised memory, and the caller that nothing changes it.
            (Some(part), None) => unsafe { std::slice::from_raw_parts(part.base, part.length) },
            _ => {
                scratch.clear();
                self.read(offset, length, scratch);
                scratch
            }
        }
    }

    /// Writes `source` from `offset` on, as far as there is room.
    #[inline(always)]
    pub fn write(&mut self, offset: u64, source: &[u8]) {
        match &self.pieces {
            // SAFETY: the creator has promised memory that is valid for writes. `source` is memory of this library, so the two
            // do not overlap.
            Pieces::One(piece) if offset == 0 && source.len() <= piece.length => unsafe {
                std::ptr::copy_nonoverlapping(source.as_ptr(), piece.base, source.len());
            },
            _ => self.write_parts(offset, source),
        }
    }

    #[inline(never)]
    fn write_parts(&mut self, offset: u64, source: &[u8]) {
        let mut rest = source;
        for part in self.parts(offset, source.len() as u64) {
            let (now, later) = rest.split_at(part.length);
            rest = later;
            // SAFETY: the creator has promised memory that is valid for writes. `now` is memory of this library, so the
            // two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.base, now.len()) };
        }
    }

    /// Gives up the first `bytes` of it.
    pub fn advance(&mut self, bytes: u64) {
        *self = self.part(bytes, self.length.saturating_sub(bytes));
    }

    /// The part of `length` bytes from `offset` on, as far as there is memory. The promises for this value hold for it too.
    pub fn part(&self, offset: u64, length: u64) -> Self {
        let pieces: Box<[Piece]> = self.parts(offset, length).collect();
        let length = pieces.iter().map(|piece| piece.length as u64).sum();
        let pieces = match *pieces {
            [one] => Pieces::One(one),
            _ => Pieces::Many(pieces),
        };
        Self { pieces, length }
    }

    /// Its first `length` bytes, for a port to put, or to let a peer put into. `None`: it has several pieces.
    ///
    /// # Safety
    /// The buffer is dropped before this value, and is not used by a port while a method of this value runs.
    pub unsafe fn buffer(&self, length: u64) -> Option<Buffer> {
        let Pieces::One(piece) = &self.pieces else { return None };
        let length = usize::try_from(length).ok().filter(|length| *length <= piece.length)?;
        // SAFETY: the creator has promised valid memory, and the caller that the buffer goes first. What others may change
        // meanwhile is put, got into or registered, of which the contract says that any mix of bytes will do.
        Some(unsafe { Buffer::from_raw(piece.base, length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(pieces: &mut [Vec<u8>]) -> Vec<iovec> {
        pieces
            .iter_mut()
            .map(|piece| iovec { base: piece.as_mut_ptr().cast(), length: piece.len() })
            .collect()
    }

    #[test]
    fn bytes_cross_the_borders_of_pieces() {
        let mut pieces = [vec![1, 2], vec![], vec![3], vec![4, 5, 6]];
        let vectors = vectors(&mut pieces);
        // SAFETY: the pieces live longer, and only this value touches them meanwhile.
        let mut memory = unsafe { Memory::gather(vectors.as_ptr(), vectors.len()) }.expect("four pieces");
        let mut bytes = Vec::new();
        memory.read(1, 4, &mut bytes);
        assert_eq!((bytes, memory.length()), (vec![2, 3, 4, 5], 6));
        memory.write(1, &[7, 8, 9]);
        memory.write(5, &[10, 11]);
        assert_eq!(
            (memory.part(1, 3).length(), memory.part(5, 3).length(), memory.part(7, 1).length()),
            (3, 1, 0)
        );
        memory.advance(4);
        memory.write(0, &[12, 13]);
        assert_eq!(memory.length(), 2);
        memory.advance(2);
        assert_eq!(memory.length(), 0);
        drop(memory);
        assert_eq!(pieces, [vec![1, 7], vec![], vec![8], vec![9, 12, 13]]);
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let mut pieces = vec![vec![0]; PIECES_MAX + 1];
        let vectors = vectors(&mut pieces);
        // SAFETY: the pieces live longer, and only this value touches them meanwhile.
        assert!(unsafe { Memory::gather(vectors.as_ptr(), vectors.len()) }.is_none());
        // SAFETY: no piece is read.
        assert!(unsafe { Memory::gather(std::ptr::null(), 0) }.is_some_and(|memory| memory.length() == 0));
    }
}
