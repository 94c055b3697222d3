//! The instruction `syscall` of x86-64.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions,
    OpAccess, Register,
};

use super::call::{Call, Value};

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// How far before a `syscall` its number is looked for. Compilers put the two next to each other.
const REACH_BYTES: usize = 64;

/// Tells which registers an instruction changes. It allocates when it is made, so it is made once.
pub struct Registers(InstructionInfoFactory);

impl Registers {
    /// Allocates the room for the lists of one instruction.
    pub fn new() -> Self {
        Self(InstructionInfoFactory::new())
    }
}

/// The system calls with wanted numbers in this code, and those with any number. One whose number is in a register from
/// the start counts for nothing: Chromium has a function for calls that its filters have caught.
pub fn calls_in(
    code: &[u8],
    registers: &mut Registers,
    is_wanted: impl Fn(u32) -> bool,
) -> impl Iterator<Item = Call> {
    let mut from = 0;
    core::iter::from_fn(move || {
        while let Some(at) = next_syscall(code, from) {
            from = at + 1;
            let call = call_at(code, at, registers, &is_wanted);
            if call.is_some() {
                return call;
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

/// The registers in the order of their numbers in instructions.
const REGISTERS: [Register; 16] = {
    use Register::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
    [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15]
};
/// Those that a function leaves as they were.
const KEPT: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];

/// The call if the bytes at `at` are executed as a `syscall`. In loops its number comes by way of a register that the call
/// leaves as it is.
fn call_at(
    code: &[u8],
    at: usize,
    registers: &mut Registers,
    is_wanted: &impl Fn(u32) -> bool,
) -> Option<Call> {
    let first = at.saturating_sub(REACH_BYTES);
    let call = |number: u32| is_wanted(number).then_some(Call::Number(number));
    (first..at).rev().find_map(|start| match value_from(code.get(start..at)?, registers, Register::RAX)? {
        Value::Number(number) => call(number),
        Value::Of(register) => constant_before(code, start, registers, register).and_then(call),
        Value::Stack => Some(Call::Any),
    })
}

/// The constant in a register when the bytes at `at` are executed.
fn constant_before(code: &[u8], at: usize, registers: &mut Registers, register: Register) -> Option<u32> {
    let first = at.saturating_sub(REACH_BYTES);
    (first..at).rev().find_map(|start| match value_from(code.get(start..at)?, registers, register)? {
        Value::Number(number) => Some(number),
        Value::Of(_) | Value::Stack => None,
    })
}

/// What the instruction at the start of this code puts into a register that holds it at the end of the code.
fn value_from(code: &[u8], registers: &mut Registers, register: Register) -> Option<Value<Register>> {
    let (value, length) = load_at(code, register)?;
    reaches(code.get(length..)?, registers, register).then_some(value)
}

/// What an instruction at the start of these bytes puts into a register, and its length.
fn load_at(code: &[u8], register: Register) -> Option<(Value<Register>, usize)> {
    // The lower three bits of a register's number are in the instruction, the fourth one is in its prefix.
    let is_it = |number: u8| REGISTERS.get(usize::from(number)) == Some(&register);
    let (prefix, rest, prefix_length) = match *code {
        [prefix @ 0x40..=0x4F, ref rest @ ..] => (prefix, rest, 1),
        ref rest => (0, rest, 0),
    };
    let (is_wide, reg, rm) = (prefix & 8 != 0, (prefix & 4) << 1, (prefix & 1) << 3);
    let number = |low: u8, high: u8| low & 7 | high;
    let (value, length) = match *rest {
        // mov register, number
        [code @ 0xB8..=0xBF, a, b, c, d, ..] if !is_wide && is_it(number(code, rm)) => {
            (Value::Number(u32::from_le_bytes([a, b, c, d])), 5)
        }
        [0xC7, to @ 0xC0..=0xC7, a, b, c, d, ..] if is_it(number(to, rm)) => {
            (Value::Number(u32::from_le_bytes([a, b, c, d])), 6)
        }
        // push number, pop register
        [0x6A, number, 0x58, ..] if prefix == 0 && register == Register::RAX => {
            (Value::Number(number.into()), 3)
        }
        // mov rax, [rsp+n], [rbp+n]
        [0x8B, 0x04, 0x24, ..] if prefix == 0x48 && register == Register::RAX => (Value::Stack, 3),
        [0x8B, 0x44, 0x24, _, ..] if prefix == 0x48 && register == Register::RAX => (Value::Stack, 4),
        [0x8B, 0x84, 0x24, _, _, _, _, ..] if prefix == 0x48 && register == Register::RAX => {
            (Value::Stack, 7)
        }
        [0x8B, 0x45, _, ..] if prefix == 0x48 && register == Register::RAX => (Value::Stack, 3),
        [0x8B, 0x85, _, _, _, _, ..] if prefix == 0x48 && register == Register::RAX => (Value::Stack, 6),
        // mov register, other
        [0x89, both @ 0xC0..=0xFF, ..] if is_it(number(both, rm)) => {
            (Value::Of(*REGISTERS.get(usize::from(number(both >> 3, reg)))?), 2)
        }
        [0x8B, both @ 0xC0..=0xFF, ..] if is_it(number(both >> 3, reg)) => {
            (Value::Of(*REGISTERS.get(usize::from(number(both, rm)))?), 2)
        }
        _ => return None,
    };
    Some((value, prefix_length + length))
}

/// Returns whether execution from the start of this code reaches its end with a register as it was. Bytes that only look
/// like a `syscall` lie inside of another instruction, or are not reached.
fn reaches(code: &[u8], registers: &mut Registers, register: Register) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction: Instruction = decoder.decode();
        let goes_on = match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => true,
            FlowControl::Call | FlowControl::IndirectCall => KEPT.contains(&register),
            _ => false,
        };
        let is_changed = registers
            .0
            .info_options(&instruction, InstructionInfoOptions::NO_MEMORY_USAGE)
            .used_registers()
            .iter()
            .any(|used| {
                use OpAccess::{CondRead, NoMemAccess, None, Read};
                used.register().full_register() == register
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
        match calls_in(&parts.concat(), &mut Registers::new(), |number| number == SENDTO).next()? {
            Call::Number(number) => Some(number),
            Call::Any => panic!("a number from the stack in {parts:x?}"),
        }
    }

    #[test]
    fn numbers_from_the_stack_are_any_numbers() {
        for load in [
            &b"\x48\x8b\x04\x24"[..],
            b"\x48\x8b\x44\x24\x28",
            b"\x48\x8b\x84\x24\x28\x01\0\0",
            b"\x48\x8b\x45\xe8",
            b"\x48\x8b\x85\xe8\xfe\xff\xff",
        ] {
            // mov rdi, [rbp-16]
            for between in [&b""[..], b"\x48\x8b\x7d\xf0"] {
                let code = [load, between, &SYSCALL].concat();
                let found: Vec<Call> = calls_in(&code, &mut Registers::new(), |_| false).collect();
                assert_eq!(found, [Call::Any], "{load:x?} {between:x?}");
            }
        }
        // Another register, and a number that a call gives.
        for load in [&b"\x48\x8b\x4c\x24\x28"[..], b"\x48\x8b\x45\xe8\xff\xd0"] {
            assert_eq!(
                calls_in(&[load, &SYSCALL].concat(), &mut Registers::new(), |_| true).next(),
                None,
                "{load:x?}"
            );
        }
    }

    #[test]
    fn all_wanted_numbers_are_found() {
        let code = [b"\xb8\x2c\0\0\0", &SYSCALL[..], b"\xb8\x2d\0\0\0", &SYSCALL, b"\x6a\x48\x58", &SYSCALL]
            .concat();
        let found: Vec<Call> =
            calls_in(&code, &mut Registers::new(), |number| [SENDTO, 0x48].contains(&number)).collect();
        assert_eq!(found, [SENDTO, 0x48].map(Call::Number));
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
    fn a_constant_in_another_register_is_found() {
        // mov ebp, 44; mov eax, ebp. The same in r12d, in the other form, and with a call between.
        let call = &b"\xe8\0\0\0\0"[..];
        for (load, copy, is_kept) in [
            (&b"\xbd\x2c\0\0\0"[..], &b"\x89\xe8"[..], true),
            (b"\xbd\x2c\0\0\0", b"\x8b\xc5", true),
            (b"\x41\xbc\x2c\0\0\0", b"\x44\x89\xe0", true),
            (b"\x41\xbc\x2c\0\0\0", b"\x4c\x89\xe0", true),
            (b"\x41\xbc\x2c\0\0\0", b"\x41\x8b\xc4", true),
            (b"\x48\xc7\xc2\x2c\0\0\0", b"\x48\x89\xd0", false),
        ] {
            assert_eq!(number_in(&[load, copy, &SYSCALL]), Some(SENDTO), "{load:x?} {copy:x?}");
            assert_eq!(
                number_in(&[load, b"\x31\xff", copy, b"\x89\xde", &SYSCALL]),
                Some(SENDTO),
                "{load:x?} {copy:x?}"
            );
            let behind = number_in(&[load, call, copy, &SYSCALL]);
            assert_eq!(behind.is_some(), is_kept, "{load:x?} {copy:x?}");
        }
        // Another register, one that has changed, and a copy of a copy.
        assert_eq!(number_in(&[b"\xbd\x2c\0\0\0", b"\x89\xd8", &SYSCALL]), None);
        assert_eq!(number_in(&[b"\xbd\x2c\0\0\0", b"\x31\xed", b"\x89\xe8", &SYSCALL]), None);
        assert_eq!(number_in(&[b"\xbb\x2c\0\0\0", b"\x89\xdd", b"\x89\xe8", &SYSCALL]), None);
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
