package bootstrap

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	brotliv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/brotli/compressor/v3"
	gzipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	zstdv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/compressor/v3"
	compressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// compressors are filters that compress text for who accepts it.
func compressors() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		compressor("brotli", &brotliv3.Brotli{}),
		compressor("zstd", &zstdv3.Zstd{}),
		compressor("gzip", &gzipv3.Gzip{}),
	}
}

func compressor(kind string, library proto.Message) *hcmv3.HttpFilter {
	config := &compressorv3.Compressor{
		CompressorLibrary: &corev3.TypedExtensionConfig{Name: "stats_" + kind, TypedConfig: mustAny(library)},
	}
	return &hcmv3.HttpFilter{
		Name:       "envoy.filters.http.compressor." + kind,
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mustAny(config)},
	}
}
