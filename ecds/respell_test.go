package ecds

import "testing"

// Envoy remembers what it refused, over streams: given the same once more it accepts without a look. So what it had not answered when its
// stream ended, and may have refused, goes out in another spelling.
func TestUnansweredPushIsRespelled(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, nil)
	r.want(1, "oci://r/v2 c2")
	r.close(1)

	r.open(2, "p")
	r.want(2, "oci://r/v2 c2 salted")
	r.answer(2, "p", errEnvoy)
	r.want(2, "oci://r/v1 c1")
	r.answer(2, "p", nil)
	r.wantState("p", StateRejected)
}

func TestAnsweredPushKeepsItsSpelling(t *testing.T) {
	r := live(t, v1)
	r.close(1)
	r.open(2, "p")
	r.want(2, "oci://r/v1 c1") // and no answer: it worked before
	r.close(2)
	r.open(3, "p")
	r.want(3, "oci://r/v1 c1")
}

func TestUnansweredFirstPushIsRespelled(t *testing.T) {
	r := sent(t, v1, "oci://r/v1 c1")
	r.close(1)
	r.open(2, "p")
	r.want(2, "oci://r/v1 c1 salted")
	r.answer(2, "p", nil)
	r.wantState("p", StateLive)
	r.close(2)
	r.open(3, "p")
	r.want(3, "oci://r/v1 c1 salted")
}
