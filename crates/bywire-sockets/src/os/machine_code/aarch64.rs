//! The instruction `svc #0` of aarch64, whose number is in register 8.
//!
//! Every instruction has four bytes. The bits of their classes are from the "Arm Architecture Reference Manual", chapter
//! "A64 instruction set encoding".

use super::call::{Call, Value};

/// The instruction `svc #0`.
const SVC: u32 = 0xD400_0001;
/// How many instructions before a call its number is looked for. Compilers put the two next to each other.
const REACH: usize = 16;
/// The register with the number of a call.
const NUMBER: u32 = 8;
/// The number of a register that is always zero, or that is the stack pointer: which one depends on the instruction.
const ZERO_OR_STACK: u32 = 31;
/// The register that holds the frame's address.
const FRAME: u32 = 29;

/// Nothing has to be prepared.
pub struct Registers;

impl Registers {
    /// Allocates nothing.
    pub fn new() -> Self {
        Self
    }
}

/// The system calls with wanted numbers in this code, and those with any number. One whose number is in a register from
/// the start counts for nothing.
pub fn calls_in(
    code: &[u8],
    _registers: &mut Registers,
    is_wanted: impl Fn(u32) -> bool,
) -> impl Iterator<Item = Call> {
    let (code, _rest) = code.as_chunks::<4>();
    let mut from = 0;
    core::iter::from_fn(move || {
        while let Some(at) = next_call(code, from) {
            from = at + 1;
            let call = call_at(code, at, &is_wanted);
            if call.is_some() {
                return call;
            }
        }
        None
    })
}

/// The place of the next `svc #0`.
fn next_call(code: &[[u8; 4]], from: usize) -> Option<usize> {
    /// The instructions that are examined at once.
    const BLOCK: usize = 16;
    let is_call = |word: &[u8; 4]| u32::from_le_bytes(*word) == SVC;
    let mut at = from;
    // Without a branch for each instruction, the compiler compares several at once.
    while let Some(block) = code.get(at..at + BLOCK)
        && !block.iter().fold(false, |found, word| found | is_call(word))
    {
        at += BLOCK;
    }
    code.get(at..)?.iter().position(is_call).map(|position| at + position)
}

/// The call of the `svc #0` at `at`. In loops its number comes by way of a register that the call leaves as it is.
fn call_at(code: &[[u8; 4]], at: usize, is_wanted: &impl Fn(u32) -> bool) -> Option<Call> {
    let call = |number: u32| is_wanted(number).then_some(Call::Number(number));
    match value_before(code, at, NUMBER)? {
        (Value::Number(number), _) => call(number),
        (Value::Of(register), place) => match value_before(code, place, register)?.0 {
            Value::Number(number) => call(number),
            Value::Of(_) | Value::Stack => None,
        },
        (Value::Stack, _) => Some(Call::Any),
    }
}

/// What a register holds when the instruction at `at` is executed, and the place of the instruction that puts it there.
fn value_before(code: &[[u8; 4]], at: usize, register: u32) -> Option<(Value<u32>, usize)> {
    for place in (at.saturating_sub(REACH)..at).rev() {
        let word = u32::from_le_bytes(*code.get(place)?);
        if let Some(value) = load(word, register) {
            return Some((value, place));
        }
        if ends(word, register) || changes(word, register) {
            return None;
        }
    }
    None
}

/// What an instruction puts into a register, if that is a constant, another register or a word of the stack.
fn load(word: u32, register: u32) -> Option<Value<u32>> {
    if word & 31 != register {
        return None;
    }
    let first = word >> 5 & 31;
    match word {
        // movz, without a shift.
        _ if word & 0x7FE0_0000 == 0x5280_0000 => Some(Value::Number(word >> 5 & 0xFFFF)),
        // orr with the zero register and a constant: older compilers load bits in a row so.
        _ if word & 0x7F80_0000 == 0x3200_0000 && first == ZERO_OR_STACK => bits(word).map(Value::Number),
        // mov register, other
        _ if word & 0x7FE0_FFE0 == 0x2A00_03E0 => Some(Value::Of(word >> 16 & 31)),
        // ldr and ldur from the stack or the frame.
        _ if matches!(word & 0xBFC0_0000, 0xB940_0000 | 0xB840_0000)
            && (word & 0x0100_0000 != 0 || word & 0x0020_0C00 == 0)
            && matches!(first, ZERO_OR_STACK | FRAME) =>
        {
            Some(Value::Stack)
        }
        _ => None,
    }
}

/// The constant of a logical instruction, if it is a run of set bits from the lowest one on, rotated, in 32 or 64 bits;
/// shorter repeated patterns are no numbers of calls.
fn bits(word: u32) -> Option<u32> {
    let (is_wide, rotation, last) = (word & 1 << 22 != 0, word >> 16 & 63, word >> 10 & 63);
    let width = if is_wide { 64 } else { 32 };
    // A pattern of 32 bits in a register of 64 would repeat.
    if word >> 31 != u32::from(is_wide) || last + 1 >= width || rotation >= width {
        return None;
    }
    let run = (1u64 << (last + 1)) - 1;
    let rotated =
        if is_wide { run.rotate_right(rotation) } else { (run as u32).rotate_right(rotation).into() };
    u32::try_from(rotated).ok()
}

/// Returns whether execution does not go on behind an instruction, or goes on without the register as it was.
fn ends(word: u32, register: u32) -> bool {
    let is_call = word >> 26 == 0b10_0101 || word & 0xFFFF_FC1F == 0xD63F_0000;
    let is_jump = word >> 26 == 0b00_0101
        // br, ret, eret and the forms of blr that check the address
        || word & 0xFE00_0000 == 0xD600_0000 && !is_call
        // brk, hlt and the like; svc leaves all registers but the first.
        || word & 0xFF00_0000 == 0xD400_0000 && word != SVC
        || word >> 16 == 0;
    is_jump || is_call && !(19..=28).contains(&register)
}

/// Returns whether an instruction may change a register. Where the fields do not say it, it may.
fn changes(word: u32, register: u32) -> bool {
    let [first, second, third] = [word, word >> 10, word >> 5].map(|field| field & 31 == register);
    match word >> 25 & 15 {
        // Arithmetic with constants, and with registers. ccmp has a constant where others have the register.
        0b1000 | 0b1001 => first,
        0b0101 | 0b1101 => first && word & 0x1FE0_0000 != 0x1A40_0000,
        // Branches, and mrs.
        0b1010 | 0b1011 => first && word & 0xFFF0_0000 == 0xD530_0000,
        // Vectors: moves and conversions to a register.
        0b0111 | 0b1111 => {
            first
                && (word & 0x7F20_FC00 == 0x1E20_0000
                    || matches!(word & 0xBFE0_FC00, 0x0E00_3C00 | 0x0E00_2C00))
        }
        // Loads and stores.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            let is_vector = word & 1 << 26 != 0;
            let is_pair = word >> 27 & 7 == 0b101;
            let is_single = word >> 27 & 7 == 0b111;
            // Those of pairs with bit 23, and those of single registers with bit 10 and without 21 and 24, change the address.
            let changes_address = is_pair && word & 1 << 23 != 0
                || is_single && word & (1 << 24 | 1 << 21 | 1 << 10) == 1 << 10
                || is_vector && !is_pair && !is_single;
            let is_store = (is_pair && word & 1 << 22 == 0)
                || (is_single
                    && word & 3 << 22 == 0
                    && (word & 1 << 24 != 0 || word & (1 << 21 | 3 << 10) != 1 << 21));
            // The rest are exclusive and atomic accesses, which may change any of their registers.
            let is_plain =
                is_pair || is_single && (word & 1 << 24 != 0 || word & (1 << 21 | 3 << 10) != 1 << 21);
            let is_loaded = !is_vector && !is_store && (first || is_pair && second);
            let is_status = !is_vector && !is_plain && (first || second || word >> 16 & 31 == register);
            changes_address && third || is_loaded || is_status
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDTO: u32 = 206;
    /// mov w8, #206; mov x8, #206; orr w8, wzr, #64
    const LOADS: [u32; 2] = [0x5280_19C8, 0xD280_19C8];

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn first(words: &[u32]) -> Option<Call> {
        calls_in(&bytes(words), &mut Registers::new(), |number| number == SENDTO).next()
    }

    #[test]
    fn a_constant_number_is_found_however_it_gets_there() {
        for load in LOADS {
            // mov w0, w19; cbz x0, +8; str x8, [sp]; stp x8, x9, [sp, #16]; svc #0; cmp x8, #8; ccmp x0, #0, #8, eq
            for between in [
                0x2A13_03E0,
                0xB400_0040,
                0xF900_03E8,
                0xA901_27E8,
                SVC,
                0xF100_211F,
                0xFA40_0808,
                0x1E60_2008,
            ] {
                for before in [0, 1, 15, 16, 17, 100] {
                    let code = [vec![0xD503_201F; before], vec![load, between, SVC]].concat();
                    assert_eq!(first(&code), Some(Call::Number(SENDTO)), "{load:x} {between:x} {before}");
                }
            }
            assert_eq!(first(&[load, SVC]), Some(Call::Number(SENDTO)));
        }
        // orr w8, wzr, #0x40: ppoll is 73, epoll_ctl 21, readv 65, sendmmsg 269; 64 is write.
        let found =
            calls_in(&bytes(&[0x321A_03E8, SVC]), &mut Registers::new(), |number| number == 64).next();
        assert_eq!(found, Some(Call::Number(64)));
        // orr x8, xzr, #0x40
        let found =
            calls_in(&bytes(&[0xB27A_03E8, SVC]), &mut Registers::new(), |number| number == 64).next();
        assert_eq!(found, Some(Call::Number(64)));
    }

    #[test]
    fn a_constant_in_another_register_is_found() {
        // mov w20, #206; bl; mov x8, x20
        assert_eq!(first(&[0x5280_19D4, 0x9400_0010, 0xAA14_03E8, SVC]), Some(Call::Number(SENDTO)));
        // mov w9, #206; mov w8, w9, with and without a call between
        assert_eq!(first(&[0x5280_19C9, 0x2A09_03E8, SVC]), Some(Call::Number(SENDTO)));
        assert_eq!(first(&[0x5280_19C9, 0x9400_0010, 0x2A09_03E8, SVC]), None);
        // A copy of a copy.
        assert_eq!(first(&[0x5280_19D4, 0xAA14_03F5, 0xAA15_03E8, SVC]), None);
    }

    #[test]
    fn numbers_from_the_stack_are_any_numbers() {
        // ldr x8, [sp, #8]; ldr w8, [sp, #8]; ldur x8, [x29, #-8]; ldr x8, [x29, #16]
        for load in [0xF940_07E8, 0xB940_0BE8, 0xF85F_83A8, 0xF940_0BA8] {
            // ldr x0, [sp, #16]
            for between in [&[][..], &[0xF940_0BE0]] {
                let code = [&[load], between, &[SVC]].concat();
                assert_eq!(first(&code), Some(Call::Any), "{load:x}");
            }
        }
        // Another register, another base, a register of a function's caller, and a number that a call gives.
        for code in [
            &[0xF940_07E9, SVC][..],
            &[0xF940_0668, SVC],
            &[0xAA00_03E8, SVC],
            &[0xF940_07E8, 0x9400_0010, SVC],
        ] {
            assert_eq!(first(code), None, "{code:x?}");
        }
    }

    #[test]
    fn all_wanted_numbers_are_found() {
        let code = bytes(&[LOADS[0], SVC, 0x5280_19E8, SVC, 0x5280_1A08, SVC]);
        let found: Vec<Call> =
            calls_in(&code, &mut Registers::new(), |number| [SENDTO, 208].contains(&number)).collect();
        assert_eq!(found, [SENDTO, 208].map(Call::Number));
    }

    #[test]
    fn other_numbers_and_changed_registers_are_not_found() {
        // Another number.
        assert_eq!(first(&[0x5280_19E8, SVC]), None);
        for between in [
            // ret; b; bl; blr x3; br x3; brk #0; mov w8, w1; add x8, x8, #1; ldr x8, [x0]; ldp x0, x8, [sp]
            0xD65F_03C0,
            0x1400_0004,
            0x9400_0004,
            0xD63F_0060,
            0xD61F_0060,
            0xD420_0000,
            0x2A01_03E8,
            0x9100_0508,
            0xF940_0008,
            0xA940_23E0,
            // ldr x0, [x8], #8; ldxr w8, [x0]; stxr w8, w1, [x0]; ldadd w1, w8, [x0]; mrs x8, tpidr_el0; fmov x8, d0
            0xF840_8500,
            0x885F_7C08,
            0x8808_7C01,
            0xB821_0008,
            0xD53B_D048,
            0x9E66_0008,
        ] {
            assert_eq!(first(&[LOADS[0], between, SVC]), None, "{between:x}");
        }
        assert_eq!(first(&[&[LOADS[0]][..], &[0xD503_201F; REACH], &[SVC]].concat()), None, "too far away");
        assert_eq!(first(&[SVC]), None);
        assert!(calls_in(&[1, 0, 0], &mut Registers::new(), |_| true).next().is_none());
    }
}
