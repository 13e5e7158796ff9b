// SPDX-License-Identifier: BSD-3-Clause

// Loaded with its style when a kernel first uses the GPU.
import '../../style/notebook.css';

export { NotebookParts } from './parts';
