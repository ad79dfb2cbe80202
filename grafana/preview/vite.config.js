import { cpSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

// Dashboards and icons are fetched by name while the page is open.
function files() {
  return {
    name: 'files',
    closeBundle() {
      cpSync('node_modules/@grafana/ui/dist/public/img', 'dist/public/build/img', { recursive: true });
      cpSync('../dashboards', 'dist/dashboards', { recursive: true });
    },
  };
}

export default defineConfig({
  plugins: [files()],
  resolve: {
    alias: {
      '@grafana/plugin-compat/datasources': fileURLToPath(new URL('src/datasources.js', import.meta.url)),
      // A bridge between two versions of the router, of which there is but one here.
      'react-router-dom-v5-compat': 'react-router-dom',
    },
  },
  define: { global: 'globalThis' },
  build: { minify: false, reportCompressedSize: false, chunkSizeWarningLimit: 50000 },
  logLevel: 'error',
});
