// SPDX-License-Identifier: GPL-2.0

//! Tests that the structs of C are for Rust what they are for the C compiler.
//!
//! bindgen reads the headers with a compiler of its own, which may differ from the kernel's in what it thinks of a flag
//! or an attribute. `rust/bindings/kunit.c` has the numbers of the kernel's compiler.

use kernel::prelude::*;

#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_layout)]
mod tests {
    use core::mem::{
        offset_of,
        size_of, //
    };

    use smc_bindings as bindings;

    use super::*;

    /// Whether C has the same number under this name; says so when not.
    fn agrees(name: &CStr, here: usize) -> bool {
        // SAFETY: The name is a C string.
        let there = unsafe { bindings::layout_of(name.as_char_ptr()) };
        if there != here {
            pr_err!("{name:?} is {here} in Rust and {there} in C\n");
        }
        there == here
    }

    /// Compares the size of each struct and the offset of each field that is named.
    macro_rules! same_as_c {
        ($($of:ident { $($field:ident)* })*) => {{
            // Not on the stack, which has no room for it where every variable is watched.
            static HERE: &[(&CStr, usize)] = &[
                $(
                    (kernel::c_str!(stringify!($of)), size_of::<bindings::$of>()),
                    $(
                        (
                            kernel::c_str!(concat!(stringify!($of), ".", stringify!($field))),
                            offset_of!(bindings::$of, $field),
                        ),
                    )*
                )*
            ];
            HERE.iter().fold(true, |same, (name, here)| agrees(name, *here) && same)
        }};
    }

    #[test]
    fn basic_structs_agree() {
        assert!(same_as_c! {
            completion {}
            delayed_work { work }
            lock_class_key {}
            module {}
            spinlock {}
            wait_queue_entry { func entry }
            wait_queue_head {}
            work_struct {}
        });
    }

    #[test]
    fn socket_structs_agree() {
        assert!(same_as_c! {
            ctl_table { procname data maxlen mode proc_handler extra1 extra2 }
            inet_connection_sock { icsk_af_ops }
            inet_connection_sock_af_ops { sk_rx_dst_set conn_request syn_recv_sock net_header_len }
            inet_protosw { protocol prot ops }
            inet_sock {}
            iphdr { tot_len }
            ipv6_pinfo {}
            ipv6hdr { payload_len }
            kvec { iov_base iov_len }
            msghdr { msg_namelen msg_iter msg_flags }
            net { ns }
            net_proto_family { family create owner }
            nf_hook_ops { hook pf hooknum priority }
            pernet_operations { init exit id size }
            proto { init destroy hash unhash obj_size ipv6_pinfo_offset owner name }
            proto_accept_arg { flags kern }
            proto_ops { family owner release connect accept poll sendmsg recvmsg splice_eof set_peek_off }
            request_sock {}
            sk_buff { sk len head data }
            sock {
                sk_err sk_sndbuf sk_rcvbuf sk_rcvlowat sk_rcvtimeo sk_sndtimeo sk_lingertime sk_mark sk_priority
                sk_userlocks sk_shutdown sk_protocol sk_user_data sk_socket sk_destruct
            }
            sockaddr_in { sin_family sin_port sin_addr }
            sockaddr_in6 { sin6_family sin6_port sin6_addr }
            socket { file sk ops wq }
        });
    }

    #[test]
    fn rdma_structs_agree() {
        assert!(same_as_c! {
            ib_client { name add remove }
            ib_cqe { done }
            ib_device { name attrs phys_port_cnt }
            ib_event { device element event }
            ib_event_handler { device handler }
            ib_gid_attr { gid gid_type index }
            ib_mr { rkey iova }
            ib_pd { local_dma_lkey }
            ib_port_attr { state active_mtu gid_tbl_len }
            ib_qp { qp_num }
            ib_qp_attr { qp_state path_mtu rq_psn sq_psn dest_qp_num ah_attr port_num timeout rnr_retry }
            ib_qp_cap { max_send_wr max_recv_sge max_inline_data }
            ib_qp_init_attr { event_handler qp_context send_cq recv_cq cap sq_sig_type qp_type }
            ib_rdma_wr { wr remote_addr rkey }
            ib_recv_wr { next sg_list num_sge }
            ib_reg_wr { wr mr key access }
            ib_send_wr { next sg_list num_sge opcode send_flags ex }
            ib_sge { addr length lkey }
            ib_wc { status byte_len }
            in_device { ifa_list }
            in_ifaddr { ifa_next ifa_address ifa_mask }
            rdma_dev_addr { src_dev_addr dst_dev_addr bound_dev_if net network }
            scatterlist {}
        });
    }
}
