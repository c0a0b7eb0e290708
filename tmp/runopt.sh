modprobe rdma_rxe; modprobe sch_netem; echo 8 > /proc/sys/kernel/printk
insmod smc_rs.ko; python3 tmp/opt.py; rc=$?
sleep 1; ip netns list; lsmod | grep smc; rmmod smc_rs && echo unloaded
exit $rc
