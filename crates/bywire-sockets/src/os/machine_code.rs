//! System calls in machine code: `syscall` instructions with a constant number.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// How far before a `syscall` its number is looked for. Compilers put the two next to each other.
const REACH_BYTES: usize = 64;

/// The wanted numbers of system calls in this code. A number that is no constant counts for nothing: the code may be a
/// function for any call.
pub fn calls_in(code: &[u8], is_wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
    let mut from = 0;
    core::iter::from_fn(move || {
        while let Some(at) = next_syscall(code, from) {
            from = at + 1;
            let number = number_before(code, at, &is_wanted);
            if number.is_some() {
                return number;
            }
        }
        None
    })
}

/// The place of the next two bytes that may be a `syscall`.
fn next_syscall(code: &[u8], from: usize) -> Option<usize> {
    /// The bytes that are examined at once, and one more.
    const BLOCK: usize = 64;
    let mut at = from;
    while code.get(at..at + BLOCK + 1).is_some_and(|block| !has_syscall(block)) {
        at += BLOCK;
    }
    let position = |code: &[u8]| code.windows(SYSCALL.len()).position(|pair| pair == SYSCALL);
    position(code.get(at..)?).map(|position| at + position)
}

/// Returns whether such bytes begin among the first 64.
#[inline(always)]
fn has_syscall(block: &[u8]) -> bool {
    const STEP: usize = 16;
    let Ok(block) = <&[u8; 4 * STEP + 1]>::try_from(block) else { return true };
    // SAFETY: unaligned loads of 16 bytes each, from offsets of up to 49 in 65 bytes. Every x86-64 processor has SSE2.
    unsafe {
        let [one, other] = SYSCALL.map(|byte| _mm_set1_epi8(byte as i8));
        let start = block.as_ptr();
        let pairs = |offset: usize| {
            let first = _mm_loadu_si128(start.add(offset).cast::<__m128i>());
            let second = _mm_loadu_si128(start.add(offset + 1).cast::<__m128i>());
            _mm_and_si128(_mm_cmpeq_epi8(first, one), _mm_cmpeq_epi8(second, other))
        };
        let all =
            _mm_or_si128(_mm_or_si128(pairs(0), pairs(STEP)), _mm_or_si128(pairs(2 * STEP), pairs(3 * STEP)));
        _mm_movemask_epi8(all) != 0
    }
}

/// The wanted constant in `rax` when the bytes at `at` are executed as a `syscall`.
fn number_before(code: &[u8], at: usize, is_wanted: &impl Fn(u32) -> bool) -> Option<u32> {
    let first = at.saturating_sub(REACH_BYTES);
    (first..at).rev().find_map(|start| {
        let (number, length) = load_at(code.get(start..at)?)?;
        (is_wanted(number) && reaches(code.get(start + length..at)?)).then_some(number)
    })
}

/// The number that an instruction at the start of these bytes puts into `rax`, and its length.
fn load_at(code: &[u8]) -> Option<(u32, usize)> {
    match *code {
        // mov eax, number
        [0xB8, a, b, c, d, ..] => Some((u32::from_le_bytes([a, b, c, d]), 5)),
        // mov rax, number
        [0x48, 0xC7, 0xC0, a, b, c, d, ..] => Some((u32::from_le_bytes([a, b, c, d]), 7)),
        // push number, pop rax
        [0x6A, number, 0x58, ..] => Some((number.into(), 3)),
        _ => None,
    }
}

/// Returns whether execution from the start of this code reaches its end with `rax` as it was. Bytes that only look like
/// a `syscall` lie inside of another instruction, or are not reached.
fn reaches(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut registers = InstructionInfoFactory::new();
    while decoder.can_decode() {
        let instruction: Instruction = decoder.decode();
        let goes_on =
            matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        let is_changed = registers.info(&instruction).used_registers().iter().any(|used| {
            use OpAccess::{CondRead, NoMemAccess, None, Read};
            used.register().full_register() == Register::RAX
                && !matches!(used.access(), None | Read | CondRead | NoMemAccess)
        });
        if instruction.is_invalid() || !goes_on || is_changed {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDTO: u32 = 44;

    fn number_in(parts: &[&[u8]]) -> Option<u32> {
        calls_in(&parts.concat(), |number| number == SENDTO).next()
    }

    #[test]
    fn all_wanted_numbers_are_found() {
        let code = [b"\xb8\x2c\0\0\0", &SYSCALL[..], b"\xb8\x2d\0\0\0", &SYSCALL, b"\x6a\x48\x58", &SYSCALL].concat();
        let found: Vec<u32> = calls_in(&code, |number| [SENDTO, 0x48].contains(&number)).collect();
        assert_eq!(found, [SENDTO, 0x48]);
    }

    #[test]
    fn a_constant_number_is_found_however_it_gets_there() {
        for load in [&b"\xb8\x2c\0\0\0"[..], b"\x48\xc7\xc0\x2c\0\0\0", b"\x6a\x2c\x58"] {
            // mov edi, ebx; jz +2; xor r8d, r8d
            for between in [&b""[..], b"\x89\xdf", b"\x89\xdf\x74\x02\x45\x31\xc0"] {
                for before in [0, 1, 15, 16, 17, 100] {
                    let code = [&vec![0x90; before], load, between, &SYSCALL];
                    assert_eq!(number_in(&code), Some(SENDTO), "{load:x?} {between:x?} {before}");
                }
            }
        }
    }

    #[test]
    fn other_numbers_and_bytes_that_only_look_like_a_call_are_not_found() {
        let load = &b"\xb8\x2c\0\0\0"[..];
        // Another number; mov eax, ebx; ret; call; a jump away; a part of mov ecx, [rip+0x50f]; one of lea.
        assert_eq!(number_in(&[b"\xb8\x2d\0\0\0", &SYSCALL]), None);
        for between in [
            &b"\x89\xd8"[..],
            b"\xc3",
            b"\xe8\0\0\0\0",
            b"\xeb\x10",
            b"\x8b\x0d",
            b"\x48\x8d\x0d",
            b"\x30\xc0",
        ] {
            assert_eq!(number_in(&[load, between, &SYSCALL, b"\0\0"]), None, "{between:x?}");
        }
        assert_eq!(number_in(&[load, &[0x90; REACH_BYTES], &SYSCALL]), None, "too far away");
        assert_eq!(number_in(&[&SYSCALL]), None);
        assert_eq!(number_in(&[b"\x0f"]), None);
    }
}
