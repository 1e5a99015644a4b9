// Package standalone serves a watched directory of YAML and JSON files to Envoy as an ADS server, for a gateway that has
// no control plane.
//
// The directory holds what Envoy users have: an envoy.yaml, of which the static_resources are used, and the files of
// Envoy's filesystem xDS. What cannot work unchanged is rewritten: remote Wasm written in a listener becomes an
// extension config, because only those can be changed on their way to Envoy; certificates named by file come from the
// agent's secret service; references to other configuration sources become references to this one.
//
// A relative file name in the configuration is resolved against the directory that holds the configuration. (Envoy alone would
// resolve it against whatever its working directory is.)
//
// Every part is read, checked and rewritten before anything is served, and a directory with a problem in it changes
// nothing: Envoy keeps what it has, and the problem is in Status with file, line and reason.
package standalone
