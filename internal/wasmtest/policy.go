package wasmtest

// What the deny module says, at these offsets of its memory.
const (
	denyDetails   = "gateway_agent_plugin_unavailable"
	denyDetailsAt = 0
	denyBody      = "access denied\n"
	denyBodyAt    = 64
)

// Numbers of the Proxy-Wasm ABI.
const (
	noGRPCStatus     = -1
	streamDownstream = 2
	actionPause      = 1
)

// PolicyAllow writes the module that package policywasm embeds as allow.wasm.
func PolicyAllow() []byte { return Minimal() }

// PolicyDeny writes the module that package policywasm embeds as deny.wasm.
func PolicyDeny() []byte {
	var respond, closeStream uint32
	e := New(func(e *Encoder) {
		respond = e.Import("env", "proxy_send_local_response", "iiiiiiii>i")
		closeStream = e.Import("env", "proxy_close_stream", "i>i")
	})
	e.ExportFunc("proxy_on_request_headers", "iii>i",
		I32Const(403), I32Const(denyDetailsAt), I32Const(int32(len(denyDetails))), I32Const(denyBodyAt), I32Const(int32(len(denyBody))),
		I32Const(0), I32Const(0), I32Const(noGRPCStatus), Call(respond), Drop, I32Const(actionPause))
	e.ExportFunc("proxy_on_new_connection", "i>i", I32Const(streamDownstream), Call(closeStream), Drop, I32Const(actionPause))
	e.ExportFunc("proxy_on_downstream_data", "iii>i", I32Const(actionPause))
	e.Data(denyDetailsAt, denyDetails)
	e.Data(denyBodyAt, denyBody)
	return e.Bytes()
}
