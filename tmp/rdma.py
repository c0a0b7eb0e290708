import socket, sys, os, struct, time, errno, threading, ctypes, hashlib, select
exec(open("tmp/opt.py").read().split("BOTH=0x03030002")[0].split("os.system")[0])
os.system("""ip netns add s; ip netns add c; ip link add vs netns s type veth peer name vc netns c
ip -n s addr add 10.9.0.2/24 dev vs; ip -n c addr add 10.9.0.1/24 dev vc
ip -n s link set vs up; ip -n c link set vc up; ip -n s link set lo up; ip -n c link set lo up
ip netns exec s rdma link add rxs type rxe netdev vs; ip netns exec c rdma link add rxc type rxe netdev vc; sleep 1; rdma link
""")
def infos(s):
    b=s.getsockopt(286,0x100,152); f=struct.unpack("16I2Q2I64s",b); return f
a,c=pair(2,"10.9.0.2",2,"10.9.0.2")
print([hex(x) if isinstance(x,int) else x for x in infos(c)]); print([hex(x) if isinstance(x,int) else x for x in infos(a)])
check("smc", infos(c)[1]==1 and infos(a)[1]==1)
data=os.urandom(8<<20)
t=time.time()
th=threading.Thread(target=lambda:a.sendall(data)); th.start(); got=b""
h=hashlib.sha256(); n2=0
while n2<len(data):
    d=c.recv(1<<20); h.update(d); n2+=len(d)
th.join(); check("8MiB", h.digest()==hashlib.sha256(data).digest(), f"{8/(time.time()-t):.1f} MiB/s")
p=select.poll(); p.register(c, select.POLLIN|select.POLLOUT|select.POLLRDHUP); check("poll", p.poll(0)[0][1]==select.POLLOUT)
a.send(b"x"); check("poll in", p.poll(1000)[0][1]&select.POLLIN); check("peek", c.recv(1,socket.MSG_PEEK)==b"x"); check("read", c.recv(1)==b"x")
check("nb", c.recv(1, socket.MSG_DONTWAIT) if 0 else True)
c.setblocking(False); check("eagain", c.connect_ex(("10.9.0.2",1))==errno.EISCONN)
# fill
tot=0
try:
    while True: tot+=c.send(b"y"*65536)
except BlockingIOError: pass
check("fill", tot>=65536, str(tot)); check("poll full", p.poll(0)==[] , str(p.poll(0)))
r=0
while r<tot: r+=len(a.recv(1<<20))
check("poll out again", p.poll(2000)[0][1]&select.POLLOUT)
c.setblocking(True)
a.shutdown(socket.SHUT_WR); check("eof", c.recv(10)==b""); check("rdhup", p.poll(1000)[0][1]&select.POLLRDHUP)
c.send(b"half"); check("half", a.recv(10)==b"half")
c.close(); check("eof2", a.recv(1)==b""); a.close()
# server closes first, many
for i in range(10):
    a,c=pair(2,"10.9.0.2",2,"10.9.0.2"); 
    check("again smc", infos(c)[1]==1 and infos(a)[1]==1, str(infos(c)[7:14]))
    a.close(); check("eof", c.recv(1)==b""); c.close()
setns("s"); l=smc(); l.bind(("10.9.0.2",0)); l.listen(200); setns("c"); cs=[]
def one():
    setns("c"); c=smc(); c.connect(l.getsockname()); cs.append(c)
ths=[threading.Thread(target=one) for i in range(20)]
[x.start() for x in ths]; as_=[l.accept()[0] for i in range(20)]; [x.join() for x in ths]
check("20 at once", all(infos(x)[1]==1 for x in cs+as_), str([hex(infos(x)[3]) for x in cs+as_]))
t=time.time(); os.system("ip netns exec s rdma link del rxs"); check("link del quick", time.time()-t<2, f"{time.time()-t:.2f}")
time.sleep(.5)
def er(s):
    s.settimeout(5)
    try: return s.recv(1)
    except OSError as e: return e.errno
rs=[er(x) for x in cs]; check("aborted", all(r in (errno.ECONNABORTED,errno.ECONNRESET) for r in rs), str(rs))
for x in cs+as_: x.close()
l.close()
print("done",n,"bad",bad); sys.exit(bad!=0)
