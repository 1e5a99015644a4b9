package fetch

import (
	"encoding/json"
	"errors"
	"syscall"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

func marshal(v any) ([]byte, error) { return json.Marshal(v) }

// isENOSPC reports a full disk that is not called a permanent fault.
func isENOSPC(err error) bool {
	_, classified := errors.AsType[*oci.Error](err)
	return errors.Is(err, syscall.ENOSPC) && !classified
}
