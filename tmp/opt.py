import socket, sys, os, struct, time, errno, threading, ctypes
libc=ctypes.CDLL(None)
n=0;bad=0
def check(name, cond, extra=""):
    global n,bad
    n+=1
    if not cond: bad+=1
    print(("ok" if cond else "not ok"), n, name, extra, flush=True)
def setns(name):
    f=os.open("/run/netns/"+name,0); libc.setns(f,0); os.close(f)
def info(s): return struct.unpack("6I", s.getsockopt(286,0x100,152)[:24])
def smc(fam=2,proto=256): return socket.socket(fam,1,proto)
def pair(sfam,shost,cfam,chost,sp=256,cp=256,md5=None,pre=None):
    setns("s"); l=smc(sfam,sp); l.bind((shost,0)); l.listen(5)
    if md5 in("l","b"): l.setsockopt(6,14,md5key("10.9.0.1"))
    setns("c"); c=smc(cfam,cp); c.settimeout(20)
    if md5 in("c","b"): c.setsockopt(6,14,md5key("10.9.0.2"))
    if pre: pre(c)
    c.connect((chost,l.getsockname()[1])); a,_=l.accept(); l.close(); c.settimeout(None)
    c.sendall(b"ping"*1000); d=b""
    while len(d)<4000: d+=a.recv(4000)
    a.sendall(b"pong"); assert c.recv(4)==b"pong"
    return a,c
def md5key(peer):
    sa=struct.pack("=HH4s",2,0,socket.inet_aton(peer)).ljust(128,b"\0")
    return sa+struct.pack("=BBHI",0,0,3,0)+b"key".ljust(80,b"\0")
os.system("""ip netns add s; ip netns add c; ip link add vs netns s type veth peer name vc netns c
ip -n s addr add 10.9.0.2/24 dev vs; ip -n c addr add 10.9.0.1/24 dev vc; ip -n s addr add fd09::2/64 dev vs nodad; ip -n c addr add fd09::1/64 dev vc nodad
ip -n s link set vs up; ip -n c link set vc up; ip -n s link set lo up; ip -n c link set lo up
""")
time.sleep(1)
BOTH=0x03030002; NO=0x03010000
def both(tag,a,c,want=BOTH):
    check(tag, (info(a)[3]==want and info(c)[3]==want) if want==NO else (info(a)[3]!=NO and info(c)[3]!=NO), f"{info(a)[3]:#x} {info(c)[3]:#x}")
    a.close(); c.close()
setns("c"); dump=None
import subprocess
dump=subprocess.Popen("ip netns exec c tcpdump -c 400 -nvvi vc -w /tmp/x.pcap tcp 2>/dev/null", shell=True); time.sleep(3)
both("v4",*pair(2,"10.9.0.2",2,"10.9.0.2"))
both("v6",*pair(10,"fd09::2",10,"fd09::2"))
both("v4 client, v6 server",*pair(10,"::",2,"10.9.0.2"))
both("mapped client, v4 server",*pair(2,"10.9.0.2",10,"::ffff:10.9.0.2"))
both("mapped both",*pair(10,"::",10,"::ffff:10.9.0.2"))
a,c=pair(2,"10.9.0.2",2,"10.9.0.2",sp=0); check("tcp server", info(c)[3]==NO); a.close(); c.close()
a,c=pair(2,"10.9.0.2",2,"10.9.0.2",cp=0); check("tcp client", info(a)[3]==NO); a.close(); c.close()
both("md5 both",*pair(2,"10.9.0.2",2,"10.9.0.2",md5="b"),want=NO)
# offload off
os.system("ethtool -K vs tx off 2>/dev/null; ip netns exec s ethtool -K vs tx off rx off; ip netns exec c ethtool -K vc tx off rx off")
both("v4 no offload",*pair(2,"10.9.0.2",2,"10.9.0.2"))
both("v6 no offload",*pair(10,"fd09::2",10,"fd09::2"))
# nat/conntrack
os.system("ip netns exec s nft 'add table ip f; add chain ip f i { type filter hook input priority 0; }; add rule ip f i ct state invalid drop; add rule ip f i ct state new accept'; ip netns exec c nft 'add table ip f; add chain ip f i { type filter hook input priority 0; }; add rule ip f i ct state invalid drop'")
both("v4 conntrack",*pair(2,"10.9.0.2",2,"10.9.0.2"))
# loss
os.system("ip netns exec c tc qdisc add dev vc root netem loss 20%; ip netns exec s tc qdisc add dev vs root netem loss 20%")
t=time.time(); k=0
for i in range(8):
    a,c=pair(2,"10.9.0.2",2,"10.9.0.2"); k+= info(a)[3]!=NO and info(c)[3]!=NO; a.close(); c.close()
check("loss", k==8, f"{k} {time.time()-t:.1f}s")
os.system("ip netns exec c tc qdisc del dev vc root; ip netns exec s tc qdisc del dev vs root")
# syncookies
os.system("ip netns exec s sysctl -qw net.ipv4.tcp_syncookies=2")
both("syncookies",*pair(2,"10.9.0.2",2,"10.9.0.2"),want=NO)
os.system("ip netns exec s sysctl -qw net.ipv4.tcp_syncookies=1")
# concurrency
setns("s"); l=smc(); l.bind(("10.9.0.2",0)); l.listen(200); setns("c"); cs=[]
def one():
    setns("c"); c=smc(); c.connect(l.getsockname()); cs.append(c)
ths=[threading.Thread(target=one) for i in range(60)]
[x.start() for x in ths]; as_=[l.accept()[0] for i in range(60)]; [x.join() for x in ths]
check("60 at once", all(info(x)[3]!=NO for x in cs+as_), str(set(hex(info(x)[3]) for x in cs+as_)))
# many retransmits while the listener closes
for i in range(20):
    setns("s"); l2=smc(); l2.bind(("10.9.0.2",0)); l2.listen(3); setns("c"); x=smc(); x.setblocking(False); x.connect_ex(l2.getsockname()); l2.close(); x.close()
# failed connect then again
setns("c"); x=smc(); check("refused", x.connect_ex(("10.9.0.2",9))==errno.ECONNREFUSED); x.connect(l.getsockname()); a,_=l.accept(); check("after refused", info(x)[3]!=NO and info(a)[3]!=NO)
# mapped refused and then v6
x=smc(10); check("mapped refused", x.connect_ex(("::ffff:10.9.0.2",9))==errno.ECONNREFUSED)
setns("s"); l6=smc(10); l6.bind(("::",0)); l6.listen(); setns("c")

y=smc(10,0); y.connect_ex(("::ffff:10.9.0.2",9)); y.settimeout(2)
try: y.connect(("fd09::2",l6.getsockname()[1])); print("# TCP connects")
except Exception as e: print("# TCP fails too", e)
x=smc(10); x.connect(("fd09::2",l6.getsockname()[1])); a,_=l6.accept(); check("then v6", info(x)[3]!=NO and info(a)[3]!=NO, hex(info(x)[3]))
# ADDRFORM
x=smc(10); x.connect(("::ffff:10.9.0.2",l6.getsockname()[1])); a,_=l6.accept(); check("addrform", x.setsockopt(41,1,2) is None); x.send(b"q"); check("addrform data", a.recv(1)==b"q")
os.system("kill %d 2>/dev/null; pkill -x tcpdump"%dump.pid); time.sleep(1)
os.system("tcpdump -nvv -r /tmp/x.pcap 2>/dev/null | grep -A1 -c 'exp-e2d4c3d9\\|exp-e2d4'; tcpdump -nvvr /tmp/x.pcap 'tcp[tcpflags] & tcp-syn != 0' 2>/dev/null | head -6; tcpdump -nvvr /tmp/x.pcap 2>/dev/null| grep -c incorrect; nstat -az | grep -i csum; ip netns exec s nstat -az | grep -i csum")
os.system("ip netns del s; ip netns del c")
check("works in deleted namespace", (x.send(b"w"), a.recv(1))[1]==b"w")
print("done",n,"bad",bad); sys.exit(bad!=0)
