package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// newLink gives this process's network an interface eth0 with an address, as pods have one: on loopback, pilot-agent sees none.
func newLink(t *testing.T, address netip.Addr) {
	t.Helper()
	// IFLA_IFNAME, IFLA_LINKINFO{IFLA_INFO_KIND}: one end of a pair, of which nobody uses the other.
	link := append(attribute(unix.IFLA_IFNAME, []byte("eth0\x00")), attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("veth")))...)
	netlink(t, unix.RTM_NEWLINK, append(make([]byte, unix.SizeofIfInfomsg), link...))
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	up := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(up[4:], uint32(eth0.Index))
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	netlink(t, unix.RTM_NEWLINK, up)
	family := byte(unix.AF_INET)
	if address.Is6() {
		family = unix.AF_INET6
	}
	message := []byte{family, byte(address.BitLen()), unix.IFA_F_NODAD, 0, 0, 0, 0, 0} // struct ifaddrmsg
	binary.NativeEndian.PutUint32(message[4:], uint32(eth0.Index))
	netlink(t, unix.RTM_NEWADDR, append(message, attribute(unix.IFA_LOCAL, address.AsSlice())...))
}

func attribute(kind int, value []byte) []byte {
	all := make([]byte, 4, 4+len(value)+3)
	binary.NativeEndian.PutUint16(all, uint16(4+len(value)))
	binary.NativeEndian.PutUint16(all[2:], uint16(kind))
	all = append(all, value...)
	return append(all, make([]byte, (4-len(all)%4)%4)...)
}

// netlink asks the kernel to make or change something, and waits until it has.
func netlink(t *testing.T, kind int, body []byte) {
	t.Helper()
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	message := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(message, uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(message[4:], uint16(kind))
	binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	err = unix.Sendto(socket, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = acknowledged(socket)
	}
	if err != nil {
		t.Fatalf("netlink message %d: %v (this test makes an interface of kind veth: run it where containers can run)", kind, err)
	}
}

func acknowledged(socket int) error {
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(socket, answer, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("%d bytes: %w", n, err)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}
