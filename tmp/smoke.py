import socket, ctypes, os, errno, select, threading, struct, time, signal, sys, fcntl
libc = ctypes.CDLL(None, use_errno=True)
n=0; bad=0
def check(name, cond, extra=""):
    global n,bad
    n+=1
    if not cond: bad+=1
    print(("ok" if cond else "not ok"), n, name, extra, flush=True)
def raw(fam, typ, proto):
    fd = libc.socket(fam, typ, proto)
    return fd if fd>=0 else -ctypes.get_errno()
def smc(fam=socket.AF_INET, via43=False):
    if via43:
        fd = raw(43, socket.SOCK_STREAM, 1 if fam==socket.AF_INET6 else 0)
        assert fd>=0, fd
        return socket.socket(fam, socket.SOCK_STREAM, 0, fileno=fd)
    return socket.socket(fam, socket.SOCK_STREAM, 256)
def err(f,*a):
    try: f(*a)
    except OSError as e: return e.errno
    return 0
E=errno
# creation
check("dgram43", raw(43, socket.SOCK_DGRAM,0)==-E.ESOCKTNOSUPPORT)
check("proto43", raw(43, socket.SOCK_STREAM,2)==-E.EPROTONOSUPPORT)
check("inet dgram 256", raw(2, socket.SOCK_DGRAM,256) in (-E.EPROTONOSUPPORT,-E.ESOCKTNOSUPPORT))
for v in (False,True):
  for fam,host in ((socket.AF_INET,"127.0.0.1"),(socket.AF_INET6,"::1")):
    tag=f"{'43' if v else 'inet'}-{'v6' if fam==socket.AF_INET6 else 'v4'}"
    l=smc(fam,v); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR,1)
    check(tag+" listen-unbound poll", True)
    l.bind((host,0)); l.listen(5)
    port=l.getsockname()[1]
    check(tag+" acceptconn", l.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)==1)
    l.setblocking(False)
    check(tag+" accept eagain", err(l.accept)==E.EAGAIN)
    l.setblocking(True)
    c=smc(fam,v)
    check(tag+" send enotconn", err(c.send,b"x")==E.ENOTCONN)
    check(tag+" getpeername", err(c.getpeername)==E.ENOTCONN)
    c.connect((host,port))
    check(tag+" eisconn", err(c.connect,(host,port))==E.EISCONN)
    a,addr=l.accept()
    a=socket.socket(fam, socket.SOCK_STREAM, 0, fileno=a.detach())
    check(tag+" names", a.getpeername()==c.getsockname() and c.getpeername()==l.getsockname(), str(addr))
    c.sendall(b"hello"); check(tag+" data", a.recv(10)==b"hello")
    a.sendall(b"world"*10000)
    got=b""
    while len(got)<50000: got+=c.recv(65536)
    check(tag+" data back", got==b"world"*10000)
    p=select.poll(); p.register(c, select.POLLIN|select.POLLOUT|select.POLLRDHUP)
    check(tag+" poll out", p.poll(0)[0][1]==select.POLLOUT)
    c.setblocking(True)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll",0,200000))
    check(tag+" rcvtimeo", err(c.recv,1)==E.EAGAIN)
    a.shutdown(socket.SHUT_WR)
    check(tag+" eof", c.recv(1)==b"")
    check(tag+" rdhup", p.poll(0)[0][1]&select.POLLRDHUP)
    c.sendall(b"x"); check(tag+" half", a.recv(1)==b"x")
    c.close(); check(tag+" eof2", a.recv(1)==b""); a.close(); l.close()
# refused
for nb in (False,True):
    c=smc()
    if nb:
        c.setblocking(False)
        check("nb connect", err(c.connect,("127.0.0.1",9))==E.EINPROGRESS)
        p=select.poll(); p.register(c, select.POLLOUT)
        ev=p.poll(1000)
        check("nb refused poll", ev and ev[0][1]&select.POLLERR, str(ev))
        check("so_error", c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)==E.ECONNREFUSED)
        check("again", err(c.connect,("127.0.0.1",9))==E.ECONNABORTED)
        check("again2", err(c.connect,("127.0.0.1",9))==E.EINPROGRESS)
    else:
        check("refused", err(c.connect,("127.0.0.1",9))==E.ECONNREFUSED)
        check("refused again", err(c.connect,("127.0.0.1",9))==E.ECONNREFUSED)
    c.close()
# nonblocking connect ok, epoll ET
l=smc(); l.bind(("127.0.0.1",0)); l.listen(100); port=l.getsockname()[1]
ep=select.epoll()
c=smc(); c.setblocking(False); ep.register(c.fileno(), select.EPOLLIN|select.EPOLLOUT|select.EPOLLET|select.EPOLLRDHUP)
check("et connect", err(c.connect,("127.0.0.1",port))==E.EINPROGRESS)
deadline=time.time()+2; ok=False
while time.time()<deadline:
    ev=ep.poll(0.5)
    if any(e&select.EPOLLOUT and not e&select.EPOLLHUP for _,e in ev): ok=True;break
check("et epollout", ok)
check("et so_error", c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)==0)
check("connect returns 0 once", err(c.connect,("127.0.0.1",port))==0)
check("then eisconn", err(c.connect,("127.0.0.1",port))==E.EISCONN)
a,_=l.accept()
a.send(b"z"); ev=ep.poll(1); check("et in", ev and ev[0][1]&select.EPOLLIN)
# reset -> SO_ERROR
a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii",1,0)); a.close()
time.sleep(0.1)
check("rst so_error without op", c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)==E.ECONNRESET)
check("rst consumed", c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)==0)
c.recv(1) if True else 0
check("after rst recv 0", err(c.recv,1)==0)
c.close()
# many
cs=[]
for i in range(50):
    c=smc(); c.connect(("127.0.0.1",port)); cs.append(c)
as_=[l.accept()[0] for i in range(50)]
for i,c in enumerate(cs): c.send(bytes([i]))
check("many", sorted(a.recv(1)[0] for a in as_)==list(range(50)))
# plain tcp peers
t=socket.create_connection(("127.0.0.1",port)); a,_=l.accept(); t.send(b"q"); check("tcp client", a.recv(1)==b"q")
tl=socket.socket(); tl.bind(("127.0.0.1",0)); tl.listen(); c=smc(); c.connect(tl.getsockname()); a,_=tl.accept(); c.send(b"r"); check("tcp server", a.recv(1)==b"r")
check("so_protocol", c.getsockopt(socket.SOL_SOCKET, 38)==256)
# dual stack
l6=smc(socket.AF_INET6); l6.bind(("::",0)); l6.listen(); c=smc(); c.connect(("127.0.0.1", l6.getsockname()[1])); a,ad=l6.accept(); check("mapped", ad[0]=="::ffff:127.0.0.1", str(ad)); c.send(b"1"); check("mapped data", a.recv(1)==b"1")
c=smc(socket.AF_INET6); c.connect(("::ffff:127.0.0.1",port)); a,_=l.accept(); c.send(b"2"); check("mapped client", a.recv(1)==b"2")
# shutdown listener wakes accept
res=[]
th=threading.Thread(target=lambda: res.append(err(l6.accept))); th.start(); time.sleep(0.2); l6.shutdown(socket.SHUT_RDWR); th.join(2)
check("shutdown listener", res==[E.EINVAL], str(res))
# ULP, FASTOPEN, LIMIT_HS
c=smc(); check("ulp", err(c.setsockopt, socket.IPPROTO_TCP, 31, b"tls")==E.EOPNOTSUPP)
check("ulp get", err(c.getsockopt, socket.IPPROTO_TCP, 31, 16)==E.EOPNOTSUPP)
check("limit", c.getsockopt(286,1)==0); c.setsockopt(286,1,1); check("limit1", c.getsockopt(286,1)==1)
check("limit short", err(c.setsockopt,286,1,b"\1")==E.EINVAL); check("smc noopt", err(c.setsockopt,286,7,1)==E.ENOPROTOOPT)
info=struct.unpack("22I64s" if False else "6I", c.getsockopt(286,0x100,152)[:24]); check("info", info[0]==1 and info[1]==0, str(info))
c.setsockopt(socket.IPPROTO_TCP, 30, 1); info=struct.unpack("6I", c.getsockopt(286,0x100,152)[:24]); check("fastopen fallback", info[1]==2 and info[3]==0x03060000, str([hex(x) for x in info]))
c.connect(("127.0.0.1",port)); c.send(b"f"); a,_=l.accept(); check("tfo data", a.recv(1)==b"f")
c=smc(); c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20000); check("sndbuf", c.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)==40000)
c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE,1); check("keepalive", c.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)==1)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77); check("keepidle", c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)==77)
# ioctl
c.connect(("127.0.0.1",port)); a,_=l.accept(); a.send(b"abc"); time.sleep(.1); b=bytearray(4); fcntl.ioctl(c,0x541b,b); check("siocinq", struct.unpack("i",b)[0]==3)
# splice / sendfile
r,w=os.pipe(); check("splice", os.splice(c.fileno(), w, 3)==3 and os.read(r,3)==b"abc")
f=open("/bin/bash","rb"); sent=os.sendfile(c.fileno(), f.fileno(), 0, 100000)
got=b""
while len(got)<sent: got+=a.recv(65536)
f.seek(0); check("sendfile", got==f.read(sent), str(sent))
# signal interrupts
import traceback
class Sig(Exception): pass
def h(*_): raise Sig()
signal.signal(signal.SIGALRM,h); signal.setitimer(signal.ITIMER_REAL,0.2)
try: l.accept(); ok=False
except Sig: ok=True
check("accept eintr", ok)
signal.setitimer(signal.ITIMER_REAL,0.2)
try: c.recv(1); ok=False
except Sig: ok=True
check("recv eintr", ok)
# blackhole connect interrupted + timeout
c2=smc(); c2.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll",0,300000))
os.system("nft add table ip t; nft 'add chain ip t o { type filter hook output priority 0; }'; nft add rule ip t o tcp dport 4444 drop")
t0=time.time(); e=err(c2.connect,("127.0.0.1",4444)); check("connect sndtimeo", e in (E.EINPROGRESS,E.EPERM), f"{e} {time.time()-t0:.2f}")
check("connect alr", True)
c2.setblocking(False); e=err(c2.connect,("127.0.0.1",4444)); check("ealready", e==E.EALREADY, str(e))
check("getpeername connecting", err(c2.getpeername)==E.ENOTCONN)
check("send connecting", err(c2.send,b"x")==E.EAGAIN)
c2.close()
# SIGPIPE/EPIPE
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
print(a.getpeername(), c.getsockname()); os.system("ss -tnap | grep %d"%c.getsockname()[1]); a.close(); time.sleep(.3); os.system("ss -tnap | grep %d"%c.getsockname()[1])
e=0
for i in range(3): e=err(c.send,b"x") or e; time.sleep(.05)
check("epipe", e in (E.EPIPE,E.ECONNRESET), str(e))
# rmmod refused
check("rmmod busy", os.system("rmmod smc_rs 2>/dev/null")!=0)
# backlog closing
lb=smc(); lb.bind(("127.0.0.1",0)); lb.listen(3); q=[]
for i in range(6):
    s=socket.socket(); s.setblocking(False); err(s.connect,lb.getsockname()); q.append(s)
time.sleep(.3); lb.close(); time.sleep(.2)
print([err(s.recv,1) for s in q]); os.system("ss -tnap | grep %d"%q[0].getpeername()[1] if 0 else "true");check("reset on listener close", any(err(s.recv,1)==E.ECONNRESET for s in q))
print("done", n, "bad", bad)
sys.exit(1 if bad else 0)
