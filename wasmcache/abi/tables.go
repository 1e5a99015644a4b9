package abi

import "strings"

// Signatures are written as parameter letters, ">" and result letters: i is i32, I is i64.

// envFunctions are what every ABI version finds in the module "env".
var envFunctions = map[string]string{
	"proxy_log":                          "iii>i",
	"proxy_get_status":                   "iii>i",
	"proxy_set_property":                 "iiii>i",
	"proxy_get_property":                 "iiii>i",
	"proxy_send_local_response":          "iiiiiiii>i",
	"proxy_get_shared_data":              "iiiii>i",
	"proxy_set_shared_data":              "iiiii>i",
	"proxy_register_shared_queue":        "iii>i",
	"proxy_resolve_shared_queue":         "iiiii>i",
	"proxy_dequeue_shared_queue":         "iii>i",
	"proxy_enqueue_shared_queue":         "iii>i",
	"proxy_get_header_map_value":         "iiiii>i",
	"proxy_add_header_map_value":         "iiiii>i",
	"proxy_replace_header_map_value":     "iiiii>i",
	"proxy_remove_header_map_value":      "iii>i",
	"proxy_get_header_map_pairs":         "iii>i",
	"proxy_set_header_map_pairs":         "iii>i",
	"proxy_get_header_map_size":          "ii>i",
	"proxy_get_buffer_status":            "iii>i",
	"proxy_get_buffer_bytes":             "iiiii>i",
	"proxy_set_buffer_bytes":             "iiiii>i",
	"proxy_http_call":                    "iiiiiiiiii>i",
	"proxy_grpc_call":                    "iiiiiiiiiiii>i",
	"proxy_grpc_stream":                  "iiiiiiiii>i",
	"proxy_grpc_close":                   "i>i",
	"proxy_grpc_cancel":                  "i>i",
	"proxy_grpc_send":                    "iiii>i",
	"proxy_set_tick_period_milliseconds": "i>i",
	"proxy_get_current_time_nanoseconds": "i>i",
	"proxy_define_metric":                "iiii>i",
	"proxy_increment_metric":             "iI>i",
	"proxy_record_metric":                "iI>i",
	"proxy_get_metric":                   "ii>i",
	"proxy_set_effective_context":        "i>i",
	"proxy_done":                         ">i",
	"proxy_call_foreign_function":        "iiiiii>i",
	"pthread_equal":                      "ii>i",
	"emscripten_notify_memory_growth":    "i>",
	"envoy_resolve_dns":                  "iii>i",
}

// Functions of "env" that only some ABI versions find.
var (
	env010 = map[string]string{
		"proxy_get_configuration": "ii>i", "proxy_continue_request": ">i", "proxy_continue_response": ">i", "proxy_clear_route_cache": ">i",
	}
	env02x = map[string]string{"proxy_continue_stream": "i>i", "proxy_close_stream": "i>i"}
	env021 = map[string]string{"proxy_get_log_level": "i>i"}
)

// The WASI functions, offered under both names of the module: what the oldest hosts have, and what came later. path_link and path_symlink
// have one parameter less than WASI defines; that is how Envoy has them.
var (
	wasi15 = map[string]string{
		"fd_write": "iiii>i", "fd_read": "iiii>i", "fd_seek": "iIii>i", "fd_close": "i>i", "fd_fdstat_get": "ii>i",
		"environ_get": "ii>i", "environ_sizes_get": "ii>i", "args_get": "ii>i", "args_sizes_get": "ii>i",
		"clock_time_get": "iIi>i", "random_get": "ii>i", "proc_exit": "i>", "path_open": "iiiiiIIii>i",
		"fd_prestat_get": "ii>i", "fd_prestat_dir_name": "iii>i",
	}
	wasi18 = map[string]string{"fd_fdstat_set_flags": "ii>i", "sched_yield": ">i", "poll_oneoff": "iiii>i"}
	wasi45 = map[string]string{
		"clock_res_get": "ii>i", "fd_advise": "iIIi>i", "fd_allocate": "iII>i", "fd_datasync": "i>i", "fd_sync": "i>i",
		"fd_fdstat_set_rights": "iII>i", "fd_filestat_get": "ii>i", "fd_filestat_set_size": "iI>i", "fd_filestat_set_times": "iIIi>i",
		"fd_pread": "iiiIi>i", "fd_pwrite": "iiiIi>i", "fd_readdir": "iiiIi>i", "fd_renumber": "ii>i", "fd_tell": "ii>i",
		"path_create_directory": "iii>i", "path_remove_directory": "iii>i", "path_unlink_file": "iii>i",
		"path_filestat_get": "iiiii>i", "path_filestat_set_times": "iiiiIIi>i",
		"path_link": "iiiiii>i", "path_readlink": "iiiiii>i", "path_rename": "iiiiii>i", "path_symlink": "iiii>i",
		"sock_accept": "iii>i", "sock_recv": "iiiiii>i", "sock_send": "iiiii>i", "sock_shutdown": "ii>i",
	}
)

// callbacks are the exported functions that Envoy looks up in every module. One with another signature fails the load.
var callbacks = map[string]string{
	"proxy_on_context_create":                 "ii>",
	"proxy_on_vm_start":                       "ii>i",
	"proxy_on_configure":                      "ii>i",
	"proxy_validate_configuration":            "ii>i",
	"proxy_on_tick":                           "i>",
	"proxy_on_log":                            "i>",
	"proxy_on_delete":                         "i>",
	"proxy_on_done":                           "i>i",
	"proxy_on_new_connection":                 "i>i",
	"proxy_on_downstream_data":                "iii>i",
	"proxy_on_upstream_data":                  "iii>i",
	"proxy_on_downstream_connection_close":    "ii>",
	"proxy_on_upstream_connection_close":      "ii>",
	"proxy_on_request_headers":                "iii>i",
	"proxy_on_response_headers":               "iii>i",
	"proxy_on_request_body":                   "iii>i",
	"proxy_on_response_body":                  "iii>i",
	"proxy_on_request_trailers":               "ii>i",
	"proxy_on_response_trailers":              "ii>i",
	"proxy_on_request_metadata":               "ii>i",
	"proxy_on_response_metadata":              "ii>i",
	"proxy_on_http_call_response":             "iiiii>",
	"proxy_on_grpc_receive":                   "iii>",
	"proxy_on_grpc_close":                     "iii>",
	"proxy_on_grpc_receive_initial_metadata":  "iii>",
	"proxy_on_grpc_receive_trailing_metadata": "iii>",
	"proxy_on_queue_ready":                    "ii>",
	"proxy_on_foreign_function":               "iii>",
	"envoy_on_resolve_dns":                    "iii>",
	"envoy_on_stats_update":                   "ii>",
}

// The other exports that Envoy may look up.
const (
	exportMalloc     = "malloc"
	exportAllocate   = "proxy_on_memory_allocate"
	exportInitialize = "_initialize"
	exportStart      = "_start"
	exportMain       = "main"
	exportMainVoid   = "__main_void"
)

// The ABI versions.
const (
	abi010 = "proxy_abi_version_0_1_0"
	abi020 = "proxy_abi_version_0_2_0"
	abi021 = "proxy_abi_version_0_2_1"
)

func isMarker(name string) bool { return name == abi010 || name == abi020 || name == abi021 }

func isLookedUp(name string) bool {
	switch name {
	case exportMalloc, exportAllocate, exportInitialize, exportStart, exportMain, exportMainVoid:
		return true
	}
	_, ok := callbacks[name]
	return ok
}

// callbackSignature returns how Envoy calls the export of a module with the given marker; false if it does not look it up.
func callbackSignature(name, marker string) (string, bool) {
	if marker == abi010 {
		switch name {
		case "proxy_on_request_headers", "proxy_on_response_headers":
			return "ii>i", true
		case "proxy_on_foreign_function":
			return "", false
		}
	}
	sig, ok := callbacks[name]
	return sig, ok
}

func isWASI(module string) bool {
	return module == "wasi_snapshot_preview1" || module == "wasi_unstable"
}

// wasiSince returns the signature of a WASI function and the number of functions of the smallest set that has it.
func wasiSince(name string) (sig string, set int) {
	if sig, ok := wasi15[name]; ok {
		return sig, wasiOldest
	}
	if sig, ok := wasi18[name]; ok {
		return sig, wasiSmall
	}
	if sig, ok := wasi45[name]; ok {
		return sig, wasiLarge
	}
	return "", 0
}

// envSignature returns the signature of a function of "env" for a module with the given marker; any version's if there is no marker.
func envSignature(name, marker string) (string, bool) {
	if sig, ok := envFunctions[name]; ok {
		return sig, true
	}
	for _, set := range []struct {
		functions map[string]string
		markers   string
	}{{env010, abi010}, {env02x, abi020 + abi021}, {env021, abi021}} {
		if sig, ok := set.functions[name]; ok && strings.Contains(set.markers, marker) {
			return sig, true
		}
	}
	return "", false
}

// touchesMemory tells whether a host function reads or writes the module's memory. Those that do not are few.
func touchesMemory(f importFunc) bool {
	switch f.name {
	case "proxy_grpc_close", "proxy_grpc_cancel", "proxy_set_tick_period_milliseconds", "proxy_increment_metric", "proxy_record_metric",
		"proxy_set_effective_context", "proxy_done", "pthread_equal", "emscripten_notify_memory_growth", "proxy_continue_request",
		"proxy_continue_response", "proxy_clear_route_cache", "proxy_continue_stream", "proxy_close_stream", "sched_yield", "proc_exit",
		"fd_close", "fd_advise", "fd_allocate", "fd_datasync", "fd_sync", "fd_fdstat_set_rights", "fd_fdstat_set_flags",
		"fd_filestat_set_size", "fd_filestat_set_times", "fd_renumber", "sock_shutdown":
		return false
	}
	return true
}
