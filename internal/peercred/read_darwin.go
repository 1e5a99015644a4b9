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
		var u *unix.Xucred
		if u, inner = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); inner != nil {
			return
		}
		cred.UID, cred.GID = u.Uid, u.Groups[0]
		cred.PID, inner = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	})
	if err == nil {
		err = inner
	}
	return cred, err
}
