// SPDX-License-Identifier: BSD-3-Clause

// Loaded with its style when the sidebar of running kernels is first shown.
import '../../style/running.css';

export { GpuSection } from './section';
