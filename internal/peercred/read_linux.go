package peercred

import (
	"net"

	"golang.org/x/sys/unix"
)

func read(conn *net.UnixConn) (cred Cred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Cred{}, err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner == nil {
			cred = Cred{PID: int(u.Pid), UID: u.Uid, GID: u.Gid}
		}
	})
	if err == nil {
		err = inner
	}
	return cred, err
}
