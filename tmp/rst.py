import socket, time, errno, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
def err(f,*a):
    try: return ("ret",f(*a))
    except OSError as e: return e.errno
for nft in (0,1):
  if nft: os.system("ip addr add 192.0.2.1/24 dev lo; ip link set lo up; ip neigh add 192.0.2.77 lladdr 2:2:2:2:2:2 dev lo; nft add table ip t; nft 'add chain ip t o { type filter hook output priority 0; }'; nft add rule ip t o tcp dport 4444 drop")
  for proto in (0,0):
    l=socket.socket(socket.AF_INET,socket.SOCK_STREAM,proto); l.bind(("127.0.0.1",0)); l.listen(3)
    c=socket.socket(socket.AF_INET,socket.SOCK_STREAM,proto); c.connect(l.getsockname()); a,_=l.accept(); a.send(b"abc"); c.recv(3)
    a.close(); time.sleep(.3)
    print(nft,proto,[ (err(c.send,b"x"), time.sleep(.2))[0] for i in range(3)], flush=True)
    q=[]
    for i in range(6):
        s=socket.socket(); s.setblocking(False); err(s.connect,l.getsockname()); q.append(s)
    time.sleep(.5); l.close(); time.sleep(.5)
    print([err(s.recv,1) for s in q], flush=True)
