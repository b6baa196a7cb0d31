//! Says why a file cannot be a shared library of this machine, by the first bytes of its ELF header.
//! This is only for messages: the dynamic loader decides whether a file loads.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// `e_machine` of this build; `None` where this module does not know it.
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else if cfg!(target_arch = "riscv64") {
    Some(243)
} else {
    None
};

/// The name of an `e_machine` number.
fn machine(number: u16) -> String {
    let name = match number {
        3 => "x86 (32 bit)",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "s390x",
        40 => "Arm (32 bit)",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        _ => return format!("machine {number}"),
    };
    name.to_owned()
}

/// What is wrong with the file, if its header shows it.
pub(crate) fn problem(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(20).read_to_end(&mut head));
    if let Err(error) = read {
        return Some(format!("it cannot be read: {error}"));
    }
    explain(&head)
}

/// What is wrong with a file that starts with these bytes.
fn explain(head: &[u8]) -> Option<String> {
    if head.is_empty() {
        return Some("it is empty; a driver is a shared library".to_owned());
    }
    if !head.starts_with(b"\x7fELF") {
        return Some(
            "it is not an ELF file; a driver is a shared library (gcc -shared -fPIC)".to_owned(),
        );
    }
    let &[
        ..,
        class,
        data,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        k0,
        k1,
        m0,
        m1,
    ] = head
    else {
        return Some(format!(
            "its ELF header ends after {} bytes; the file is cut off",
            head.len()
        ));
    };
    let number = |a: u8, b: u8| {
        if data == 2 {
            u16::from_be_bytes([a, b])
        } else {
            u16::from_le_bytes([a, b])
        }
    };
    let bits = if class == 1 { 32 } else { 64 };
    let ours = if cfg!(target_pointer_width = "64") {
        64
    } else {
        32
    };
    let found = number(m0, m1);
    if MACHINE.is_some_and(|machine| machine != found) || bits != ours {
        return Some(format!(
            "it was built for {} ({bits} bit), and this process is {} ({ours} bit): build the driver \
             for this machine",
            machine(found),
            MACHINE.map_or_else(|| std::env::consts::ARCH.to_owned(), machine)
        ));
    }
    let kind = match number(k0, k1) {
        1 => "an object file (.o)",
        2 => "a program",
        4 => "a core dump",
        _ => return None,
    };
    Some(format!(
        "it is {kind}; a driver is a shared library (gcc -shared -fPIC)"
    ))
}

#[cfg(test)]
mod tests {
    use super::{MACHINE, explain};

    fn head(class: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut head = vec![
            0x7f, b'E', b'L', b'F', class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        head.extend(kind.to_le_bytes());
        head.extend(machine.to_le_bytes());
        head
    }

    #[test]
    fn each_problem_is_named() {
        assert!(explain(b"").unwrap().contains("empty"));
        assert!(explain(b"#!/bin/sh\n").unwrap().contains("not an ELF"));
        assert!(explain(b"\x7fELF\x02\x01").unwrap().contains("cut off"));
        let Some(ours) = MACHINE else { return };
        assert_eq!(explain(&head(2, 3, ours)), None);
        let foreign = if ours == 8 { 62 } else { 8 };
        assert!(explain(&head(2, 3, foreign)).unwrap().contains("MIPS"));
        assert!(explain(&head(1, 3, ours)).unwrap().contains("32 bit"));
        assert!(explain(&head(2, 1, ours)).unwrap().contains("object file"));
    }
}
