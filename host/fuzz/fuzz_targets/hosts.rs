// SPDX-License-Identifier: GPL-2.0

//! See [`smc_proto_fuzz::hosts::operate`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smc_proto_fuzz::hosts::operate(data));
