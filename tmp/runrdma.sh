modprobe rdma_rxe; modprobe veth
insmod smc_rs.ko; timeout 100 python3 tmp/rdma.py; rc=$?
ip netns del s; ip netns del c
sleep 1; lsmod | grep smc; time rmmod smc_rs && echo unloaded
exit $rc
