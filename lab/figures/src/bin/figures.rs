//! Measures a part of the figures of docs/performance.md: `figures PART [OPTIONS]`.

fn main() -> std::process::ExitCode {
    bywire_figures::main()
}
